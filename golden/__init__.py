"""The golden room: certified vectors, and the code that makes, checks and compares them."""
