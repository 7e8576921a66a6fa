"""Logging in to a Hadoop cluster: Kerberos, tokens, SASL, access lists."""
