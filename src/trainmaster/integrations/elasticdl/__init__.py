"""ElasticDL's command line as jobs of ours: `tm train`, `tm evaluate`, `tm predict`, and `tm elasticdl ...` word for word.

`flags` is the table of its flags, `values` reads the forms of their values, and `jobs` makes the job of the words in a `Request`. This
package itself loads nothing: the help texts need the table alone.
"""
