"""Thread pools of the server: results, errors, and what happens when there is no thread to be had."""

import asyncio
import threading

import pytest
from starlette.exceptions import HTTPException

from softtriple.gallery.workers import Workers


def test_work_returns_or_raises_in_the_event_loop() -> None:
    def fail() -> None:
        raise LookupError("nothing here")

    async def main() -> None:
        workers = Workers("test", threads=1, queue=0, seconds=30.0)
        assert await workers.run(lambda: threading.current_thread().name) == "gallery-test_0"
        with pytest.raises(LookupError, match="nothing here"):
            await workers.run(fail)
        assert await workers.run(lambda: 2) == 2, "failed work leaves the queue"
        workers.close()

    asyncio.run(main())


def test_without_threads_the_answer_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        workers = Workers("test", threads=1, queue=0, seconds=30.0)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(HTTPException) as error:
                await workers.run(lambda: 1)
        assert (error.value.status_code, "Retry-After" in error.value.headers) == (503, True)
        assert await workers.run(lambda: 1) == 1, "later there are threads again"
        workers.close()

    asyncio.run(main())
