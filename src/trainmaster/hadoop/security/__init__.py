"""Who one is on a Hadoop cluster: Kerberos, tokens, SASL, access lists."""
