"""The LLMs by role: who answers, who judges, who generates."""

from __future__ import annotations

import asyncio
import random
from pathlib import PurePath
from typing import Any

import httpx2
import structlog
from pydantic import SecretStr

from scopegate.domain import Invalid
from scopegate.llm.client import Llm, LlmFailed
from scopegate.probe_file import ProbeFile
from scopegate.settings import Settings

log = structlog.get_logger()

_NEEDS_A_SERVER = ("llm_model", "llm_api_key", "llm_judge_", "llm_generator_")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0


class Llms:
    """answerer, judge, generator: one and the same LLM, as far as the settings do not tell them apart."""

    def __init__(self, settings: Settings, url: str, probe: ProbeFile | None) -> None:
        """url: the setting's. probe: what the engines are asked for. Raises Invalid where a URL is none."""
        self._settings = settings
        self._url = url
        self._probe = probe
        self._roles: dict[tuple[str, str | None, str | None], list[str]] = {}
        self._made: dict[tuple[str, str | None, str | None], Llm] = {}
        self._finding: list[asyncio.Task[None]] = []
        said = settings
        self.answerer = self._role("answerer", None, None, None)
        self.judge = self._role("judge", said.llm_judge_url, said.llm_judge_model, said.llm_judge_api_key)
        self.generator = self._role(
            "generator", said.llm_generator_url, said.llm_generator_model, said.llm_generator_api_key
        )

    @classmethod
    def from_settings(cls, settings: Settings, probe: ProbeFile | None) -> Llms | None:
        """None without a URL. Raises Invalid where what needs it is set without it, or a URL is none."""
        if settings.llm_url:
            return cls(settings, settings.llm_url, probe)
        for name in sorted(settings.model_fields_set):
            if name.startswith(_NEEDS_A_SERVER) and getattr(settings, name):
                raise Invalid(f"SCOPEGATE_{name.upper()} needs SCOPEGATE_LLM_URL")
        return None

    def start(self) -> None:
        """Begins to find out what the servers can do, and goes on until each has answered."""
        self._finding = [asyncio.create_task(self._find_out(key)) for key in self._made]

    async def found(self, within_s: float) -> None:
        """Waits until every server has answered, but no longer than within_s."""
        if self._finding:
            await asyncio.wait(self._finding, timeout=within_s)

    async def stop(self) -> None:
        """Closes all connections."""
        for task in self._finding:
            task.cancel()
        await asyncio.gather(*self._finding, return_exceptions=True)
        for llm in self._made.values():
            await llm.close()

    def not_ready(self) -> list[str]:
        """Whom the gates and answers need, who has not answered since the start, and why.

        A later outage is the gates' to answer for.
        """
        return [
            f"the LLM ({', '.join(self._roles[key])}) has not answered yet: {llm.waits_for}"
            for key, llm in self._made.items()
            if llm.capabilities is None and llm in {self.answerer, self.judge}
        ]

    def status(self) -> list[dict[str, Any]]:
        """Each LLM's roles, model and capabilities, which are None until they are found out."""
        return [
            {
                "roles": self._roles[key],
                "model": _public(llm.model),
                "capabilities": llm.capabilities.shown() if llm.capabilities else None,
            }
            for key, llm in self._made.items()
        ]

    def _role(self, role: str, url: str | None, model: str | None, key: SecretStr | None) -> Llm:
        """What is not said is the answerer's, but its key goes to no other server."""
        settings = self._settings
        at = _checked(url or self._url)
        if not key and at == _checked(self._url):
            key = settings.llm_api_key
        identity = (at, model or settings.llm_model, key.get_secret_value() if key else None)
        self._roles.setdefault(identity, []).append(role)
        if identity not in self._made:
            self._made[identity] = Llm(
                *identity,
                concurrency=settings.llm_concurrency,
                queue=settings.llm_queue,
                retries=settings.llm_retries,
                timeout_s=settings.llm_timeout_s,
            )
        return self._made[identity]

    async def _find_out(self, key: tuple[str, str | None, str | None]) -> None:
        llm, roles = self._made[key], self._roles[key]
        wait_s, cause = _FIRST_WAIT_S, ""
        while llm.capabilities is None:
            try:
                await llm.find_out(self._probe)
            except LlmFailed as error:
                if str(error) != cause:
                    log.warning("the LLM has not answered yet", roles=roles, cause=str(error))
                cause = str(error)
            except Exception:
                log.exception("finding out what the LLM can do broke", roles=roles)
            if llm.capabilities is None:
                await asyncio.sleep(wait_s * random.uniform(0.75, 1.25))  # noqa: S311 - only spreads the load
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        log.info("the LLM is there", roles=roles, model=llm.model, capabilities=llm.capabilities.shown())
        for lacking in llm.capabilities.missing():
            log.warning("the LLM lacks a capability", roles=roles, model=llm.model, lacking=lacking)


def _public(model: str | None) -> str | None:
    """The model's name; of a path, which is what vLLM calls a model by default, its end: anybody may ask for it."""
    return PurePath(model).name if model and PurePath(model).is_absolute() else model


def _checked(url: str) -> str:
    """The URL without a slash at its end. Raises Invalid where it is none of HTTP."""
    try:
        parsed = httpx2.URL(url)
        usable = parsed.scheme in {"http", "https"} and parsed.host != ""
    except httpx2.InvalidURL:
        usable = False
    if not usable:
        raise Invalid("an LLM's URL must look like http://host:8000/v1")
    return url.rstrip("/")
