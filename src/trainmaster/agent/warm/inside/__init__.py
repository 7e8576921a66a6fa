"""The code that runs in a template: `sitecustomize`, by which it gets hold of a starting interpreter, and `imports`, which reads programs.

Both use the standard library alone and run on the program's Python, which may be an older one than ours.
"""
