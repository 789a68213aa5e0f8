"""What people and the Makefile run by hand: fetching the demo model, the demo, checks of the contract.

Knows nothing that the services need: none of their packages imports this one, and no image holds it.
"""
