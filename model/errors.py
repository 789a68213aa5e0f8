"""The errors of reading a model folder and of sharing a model.

Knows nothing about who asked: each service turns them into a start-up error or a status of its own.
"""


class ModelFolderError(ValueError):
    """A model folder is missing, broken or not supported: the message names the file or parameter."""


class ModelFetchError(ModelFolderError):
    """A hub did not give a model: it may do so later."""


class ShareError(ValueError):
    """So many ranks cannot share a model: the message says how many can."""
