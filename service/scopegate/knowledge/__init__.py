"""Facts: the truth in SQL, a view of it in FAISS, and the scopes that join them."""

from scopegate.knowledge.knowledge import DEFAULT_SCOPE, Knowledge
from scopegate.knowledge.view import ScopeView

__all__ = ["DEFAULT_SCOPE", "Knowledge", "ScopeView"]
