"""How token ids are grouped: neighbouring ones are drawn together first, then one of them.

Imports no torch, as what cuts a vocabulary into ranks' runs begins them with whole groups. Knows nothing
about how a group is drawn: kernels/sample.py.
"""

GROUP_SIZE = 128
"""Ids of a group; even, as two neighbouring ids share a hash."""
