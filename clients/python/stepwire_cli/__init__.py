"""The ``stepwire`` command: serve, generate, chat, state.

Starts the services as subprocesses and speaks to them through stepwire_client; imports neither.
"""
