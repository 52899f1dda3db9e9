"""Work that takes longer than a request: durable, resumed after a crash, shared between workers."""

from scopegate.jobs.jobs import Jobs
from scopegate.jobs.work import Done, Item, Work

__all__ = ["Done", "Item", "Jobs", "Work"]
