"""The routes that change items, which exist only if the server was started with ``--edit``."""

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

from softtriple.errors import counted
from softtriple.gallery.changes import Changes
from softtriple.gallery.schemas import Edit, EditAnswer
from softtriple.gallery.workers import Workers

_WORDS = {"tag": "tagged {value}", "untag": "tag {value} removed", "relabel": "relabelled {value}", "delete": "deleted"}


def add_edits(api: APIRouter, changes: Changes, workers: Workers) -> None:
    """Add the routes to ``api``; ``workers`` must have a single thread."""

    def answer(changed: int) -> EditAnswer:
        last = changes.last
        words = None
        if last is not None:
            what = _WORDS[last["action"]].format(value=f"“{last['value']}”")
            words = f"{counted(len(last['items']), 'item')} {what}"
        deleted = sum(label == "" for label in changes.labels.values())
        relabelled = len(changes.labels) - deleted
        return EditAnswer(changed=changed, last=words, relabelled=relabelled, deleted=deleted, tagged=len(changes.tags))

    @api.get("/edits", tags=["edit"])
    async def edits() -> EditAnswer:
        """How many items were changed, and what can be undone."""
        return await workers.run(lambda: answer(0))

    @api.post("/edit", tags=["edit"])
    async def edit(body: Edit) -> EditAnswer:
        """Tag items, propose another class for them, or delete them from the store."""
        value = body.value.strip()
        if body.action != "delete" and not value:
            raise HTTPException(422, f"value: {body.action} needs a {'class' if body.action == 'relabel' else 'tag'}")
        return await workers.run(lambda: answer(changes.apply(body.action, body.ids, value)))

    @api.post("/undo", tags=["edit"])
    async def undo() -> EditAnswer:
        """Take the latest change back."""
        return await workers.run(lambda: answer(int(changes.undo())))

    @api.get("/changes.csv", tags=["edit"], response_class=Response, responses={200: {"content": {"text/csv": {}}}})
    async def changes_csv() -> Response:
        """All changes as a table that ``softtriple train --labels`` reads."""
        return Response(await workers.run(changes.csv), media_type="text/csv")
