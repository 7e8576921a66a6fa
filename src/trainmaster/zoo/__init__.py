"""Models that are described in one file each: finding, checking and loading such a file.

What is here runs in users' programs too, so it needs the standard library only. A fault that the user can mend is a `BadModel`.
"""
