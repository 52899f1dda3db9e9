"""What is promised of jobs, with Postgres under them."""

from tests.unit.test_jobs import *  # noqa: F403 the same promises, collected again for this database
