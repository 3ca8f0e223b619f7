"""The kernels and the parser in plain Python, written to be read.

They are the specification of what the C extension does: the tests run both on the same input and
compare.
"""
