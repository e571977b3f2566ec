"""What a wrong call raises."""


class ArgumentError(ValueError, RuntimeError):
    """Arguments that do not fit: sizes, ranks, dtypes or devices of tensors.

    NCCL's group raises ValueError for them, and gloo's RuntimeError: it is both.
    """
