"""The kind of public fault that a mutant of a form stands for, where the survey has none."""

KIND = "none public: the survey has kernels alone"
