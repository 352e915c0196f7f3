"""The problems that the checks are run on, one function a set. `quick` is seconds, `full` a minute or two."""
