"""A package for pytest, so that what has the scope "package" ends with its last test: while Playwright has its loop in this thread, no
test beside these could have one.
"""
