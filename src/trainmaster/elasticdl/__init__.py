"""ElasticDL's program API, for model files and programs that were written for it. Each module is imported by name.

What is here runs in users' programs: it needs the standard library and NumPy, and its modules for a framework need that framework.
`preprocessing`: the preprocessing layers, for Keras 3. `fingerprints`: the hash of whole numbers by which these choose a bin.
"""
