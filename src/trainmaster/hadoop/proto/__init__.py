"""Hadoop's messages: our own `.proto` files, holding only the fields that are used, and what protoc made of them.

`tools/protos` makes the `*_pb2.py` and `*_pb2.pyi` again; a test compares them.
"""
