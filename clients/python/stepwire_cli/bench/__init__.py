"""`stepwire bench`: measures a server through its public contract, from processes of its own.

Imports neither service: it knows of a server only what any client knows.
"""
