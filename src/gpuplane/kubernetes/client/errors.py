"""What can go wrong with an API server. Nothing of the HTTP library is imported for it."""


class ApiServerError(Exception):
    """The API server did not answer, or refused. The message says which server, what went wrong, and what to do.

    `code`: the HTTP status of a refusal, else 0. `conflicts`: of an apply, who else manages a field: what the server
    says of him, and the field. `server_message`: the server's own sentence.
    """

    def __init__(
        self, reason: str, code: int = 0, conflicts: tuple[tuple[str, str], ...] = (), server_message: str = ""
    ) -> None:
        super().__init__(reason)
        self.code, self.conflicts, self.server_message = code, conflicts, server_message


class AnswerTooLarge(ApiServerError):
    """An answer has more bytes than are read."""


class ListExpired(ApiServerError):
    """The version that the pages of a list are of is forgotten."""


class WatchExpired(Exception):
    """A watch cannot go on from the version that was seen last: the collection has to be listed again."""
