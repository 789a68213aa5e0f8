"""The one error of reading a model folder.

Knows nothing about who asked: each service turns it into a start-up error or a status of its own.
"""


class ModelFolderError(ValueError):
    """A model folder is missing, broken or not supported: the message names the file or parameter."""
