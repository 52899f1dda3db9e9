"""One reply of the LLM, read as it is written."""

from __future__ import annotations

from scopegate.answering.citations import cited
from scopegate.answering.shapes import Shape, Unreadable, Written
from scopegate.llm.client import Piece
from scopegate.prompts import after_thoughts

_LONGEST = 65_536


class Reply:
    """text: all of it so far. written: what that said when it was last read. shown: its answer as it may be shown.

    citations: the passages, 1 to `passages`, that shown cites; see cited. cut: whether it ended at a limit.
    """

    def __init__(self, shape: Shape, passages: int) -> None:
        self._shape = shape
        self._passages = passages
        self.text = ""
        self.written = Written()
        self.shown = ""
        self.citations: tuple[int, ...] = ()
        self.cut = False

    @property
    def declines(self) -> bool:
        """Whether it has said that it cannot answer."""
        return self.written.can_answer is False

    def take(self, piece: Piece) -> None:
        """Adds a piece, unread: all of the text is read each time. Raises Unreadable past 65,536 characters."""
        self.cut = self.cut or piece.cut
        self.text += piece.text
        if len(self.text) > _LONGEST:
            raise Unreadable(f"it goes on after {_LONGEST} characters")

    def read(self) -> None:
        """Reads what is there. Raises Unreadable."""
        self._read(complete=False)

    def finish(self) -> None:
        """Reads it as complete. Raises Unreadable, also where there is no answer to show."""
        self._read(complete=True)
        if self.written.can_answer and not self.shown:
            raise Unreadable("its answer says nothing")

    def _read(self, *, complete: bool) -> None:
        written = self._shape.read(after_thoughts(self.text), self._passages, complete=complete)
        shown, citations = cited(written.answer, self._passages, complete=complete)
        if not shown.startswith(self.shown) or (self.declines and written.can_answer):
            raise Unreadable("it takes back what it said")
        self.written, self.shown, self.citations = written, shown, citations
