"""The web application: the routes of the page and of the JSON API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from torch import Tensor

from softtriple.errors import UserError
from softtriple.gallery import schemas
from softtriple.gallery.audits import Audits
from softtriple.gallery.changes import Changes
from softtriple.gallery.compare import Other
from softtriple.gallery.edits import add_edits
from softtriple.gallery.images import Size
from softtriple.gallery.searches import SearchQuery
from softtriple.gallery.security import Guard, Settings, error_response
from softtriple.gallery.service import GalleryService
from softtriple.gallery.workers import Batches, Workers
from softtriple.metrics import Calibration
from softtriple.models import Encoder
from softtriple.search import Store

STATIC = Path(__file__).parent / "static"

ItemId = Annotated[str, Query(description="Id of a stored item", min_length=1, max_length=4096)]
ClassName = Annotated[str, Query(alias="class", description="Name of a class", min_length=1, max_length=1024)]
QueryClass = Annotated[str | None, Query(alias="class", description="Class of the query, if known", max_length=1024)]
OnlyClass = Annotated[str | None, Query(alias="class", description="Only items of this class", max_length=1024)]
NO_CLASSES: list[str] = []
OneClass = Annotated[str, Query(max_length=1024)]
OnlyClasses = Annotated[
    list[OneClass], Query(description="Search only items of this class; repeatable", max_length=100)
]
OnlyCenter = Annotated[
    int | None, Query(description="Only items nearest to this centre of the class, counted from 0", ge=0)
]
QueryText = Annotated[str, Query(description="Text to search for", min_length=1, max_length=4000)]
Offset = Annotated[int, Query(description="Number of items to skip", ge=0, le=2**31)]
Limit = Annotated[int, Query(description="Largest number of items to return", ge=1, le=200)]
ThumbnailSize = Annotated[Size, Query(description="Longer side: 256, 800 or at most 3840 pixels")]
Neighbors = Annotated[int, Query(description="Number of neighbours", ge=1, le=100)]
MapMethod = Annotated[schemas.Method | None, Query(description="Projection; default: umap if it is ready")]
MapVersion = Annotated[str, Query(description="Version that /api/map answered with", max_length=64)]
MapProperty = Annotated[schemas.Column, Query(description="Property of the items")]
AuditKind = Annotated[schemas.AuditKind, Query(description="Which findings")]
MapRow = Annotated[int, Query(ge=0, le=2**31)]
MapRows = Annotated[list[MapRow], Query(description="Rows of the map; repeatable", min_length=1, max_length=200)]

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer, "description": text}
    for status, text in {
        401: "A token is required.",
        403: "The request comes from a page of another site.",
        404: "No such item or class, or the run does not support this kind of query.",
        409: "The store has changed since the version that was given.",
        408: "The request body arrived too slowly.",
        413: "Too many bytes or pixels.",
        415: "Not a readable image.",
        421: "Unknown host name.",
        422: "A parameter is missing or invalid.",
        429: "Busy; try again after the number of seconds in Retry-After.",
        503: "Overloaded; try again after the number of seconds in Retry-After.",
    }.items()
}
_IMAGE_BODY = {"requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string"}}}}}
_IMAGE_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {"image/webp": {}}}}


def create_app(
    encoder: Encoder,
    store: Store,
    centers: Tensor | None,
    settings: Settings | None = None,
    calibration: Calibration | None = None,
    *,
    layout_file: Path | None = None,
    changes_log: Path | None = None,
    other: Other | None = None,
    audits: Audits | None = None,
) -> FastAPI:
    """The gallery of a run: its encoder, the store of its embeddings and, if it has them, its centres and calibration.

    ``centers`` has the shape (classes, k, dim), in the order of ``encoder.class_names``. The caller closes the store.
    With a ``layout_file`` the map is laid out by UMAP in the background, and kept there. With a ``changes_log`` items
    can be tagged, relabelled and deleted, which needs a token. With an ``other`` run a page compares both. With
    ``audits``, which the application closes, a page shows what is wrong with the data.
    """
    settings = settings or Settings()
    if changes_log is not None and settings.token is None:
        raise UserError("a gallery that can be edited needs a token: Settings(token=...)")
    changes = None if changes_log is None else Changes(store, changes_log)
    service = GalleryService(encoder, store, centers, settings, calibration, layout_file, changes, other, audits)
    seconds = settings.work_seconds
    # The encoder uses all cores, and an overview is computed only once: one thread each.
    encoding = Workers("encoding", threads=1, queue=settings.max_encoding, seconds=seconds, all_cores=True)
    analyzing = Workers("analyzing", threads=1, queue=settings.max_requests, seconds=seconds)
    reading = Workers("reading", threads=4, queue=settings.max_requests, seconds=seconds)
    # Two at once: while one reads a store that has changed, the other answers from memory.
    searching = Workers("searching", threads=2, queue=0, seconds=seconds)
    searches = Batches(searching, service.search_json, at_once=2)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for workers in (encoding, analyzing, reading, searching):
            workers.close()
        service.close()

    app = FastAPI(
        title="softtriple gallery",
        description="Search a store by image, text or item, and see how well its classes are separated.",
        version=version("softtriple"),
        docs_url=None,  # FastAPI's pages load scripts from another server; /docs is our own
        redoc_url=None,
        lifespan=lifespan,
        responses=_ERRORS,
    )
    app.add_middleware(Guard, settings=settings)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["server"])
    async def health() -> schemas.Health:
        """Check that the server and its store respond. Needs no token."""
        return await reading.run(service.health)

    # `Guard` checks the token; this only documents it in /openapi.json.
    bearer = HTTPBearer(auto_error=False, description="The token that the server was started with.")
    api = APIRouter(prefix="/api", dependencies=[] if settings.token is None else [Depends(bearer)])

    @api.get("/about", tags=["server"])
    async def about() -> schemas.About:
        """Kind and number of items, and limits."""
        return await reading.run(service.about)

    @api.post("/search/image", tags=["search"], response_model=schemas.SearchAnswer, openapi_extra=_IMAGE_BODY)
    async def search_image(
        request: Request, k: Neighbors = 24, query_class: QueryClass = None, only: OnlyClasses = NO_CLASSES
    ) -> Response:
        """Neighbours of an image. The request body is the image file."""
        data = await request.body()
        vector = await encoding.run(lambda: service.embed_image(data))
        return _json(await searches.ask(SearchQuery(k, vector, query_class, only=tuple(only))))

    @api.get("/search/text", tags=["search"], response_model=schemas.SearchAnswer)
    async def search_text(
        text: QueryText, k: Neighbors = 24, query_class: QueryClass = None, only: OnlyClasses = NO_CLASSES
    ) -> Response:
        """Neighbours of a text, for runs on texts."""
        vector = await encoding.run(lambda: service.embed_text(text))
        return _json(await searches.ask(SearchQuery(k, vector, query_class, only=tuple(only))))

    @api.get("/search/item", tags=["search"], response_model=schemas.SearchAnswer)
    async def search_item(id: ItemId, k: Neighbors = 24, only: OnlyClasses = NO_CLASSES) -> Response:
        """Neighbours of a stored item."""
        return _json(await searches.ask(SearchQuery(k, item_id=id, only=tuple(only))))

    @api.get("/item", tags=["items"])
    async def item(id: ItemId) -> schemas.ItemDetails:
        """A stored item: its class, its file and its centre."""
        return await analyzing.run(lambda: service.item(id))

    @api.get("/items", tags=["items"])
    async def items(
        offset: Offset = 0, limit: Limit = 48, class_name: OnlyClass = None, center: OnlyCenter = None
    ) -> schemas.ItemPage:
        """A page of all items, or of those of a class or of one of its centres."""
        return await analyzing.run(lambda: service.items(offset, limit, class_name, center))

    @api.get("/thumbnail", tags=["items"], response_class=Response, responses=_IMAGE_ANSWER)
    async def thumbnail(id: ItemId, size: ThumbnailSize = "small") -> Response:
        """Thumbnail of a stored item."""
        image = await reading.run(lambda: service.thumbnail(id, size))
        return Response(image, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})

    @api.get("/classes", tags=["classes"], response_model=schemas.ClassList)
    async def classes() -> Response:
        """Recall@1 of every class and the classes it is confused with, lowest recall first."""
        return _json(await analyzing.run(service.classes))

    @api.get("/class-names", tags=["classes"])
    async def class_names() -> schemas.ClassNames:
        """Names of all classes; faster than /api/classes."""
        return schemas.ClassNames(class_names=sorted(await reading.run(store.classes)))

    @api.get("/class", tags=["classes"])
    async def class_page(name: ClassName) -> schemas.ClassPage:
        """One class: its recall, its centres and the items nearest to each."""
        return await analyzing.run(lambda: service.class_page(name))

    @api.get("/map", tags=["map"], response_model=schemas.MapAnswer)
    async def embedding_map(method: MapMethod = None) -> Response:
        """Items in the plane: laid out by UMAP if that is ready, else on their first two principal components."""
        return _json(await analyzing.run(lambda: service.map(method)))

    @api.get("/map/state", tags=["map"])
    async def map_state() -> schemas.MapState:
        """Whether the UMAP layout is ready; faster than /api/map."""
        return await analyzing.run(service.map_state)

    @api.get("/map/column", tags=["map"], response_model=schemas.MapColumn)
    async def map_column(version: MapVersion, column: MapProperty) -> Response:
        """The class that each item on the map is taken for, its centre, or the class that a suspect should have."""
        return _json(await analyzing.run(lambda: service.map_column(version, column)))

    @api.get("/map/items", tags=["map"])
    async def map_items(version: MapVersion, row: MapRows) -> schemas.MapItems:
        """The items in some rows of the map."""
        return await analyzing.run(lambda: service.map_items(version, row))

    if other is not None:

        @api.get("/compare", tags=["compare"])
        async def compare() -> schemas.CompareAnswer:
            """Metrics of two runs, and queries that only one gets right; the first request starts the comparison."""
            return await analyzing.run(service.compare)

    if audits is not None:

        @api.get("/audit", tags=["audit"])
        async def audit() -> schemas.AuditAnswer:
            """How many wrong labels, copies and odd items there are; the first request starts the audit."""
            return await analyzing.run(audits.answer)

        @api.get("/audit/findings", tags=["audit"])
        async def audit_findings(kind: AuditKind, offset: Offset = 0, limit: Limit = 24) -> schemas.FindingPage:
            """What the audit found, gravest first."""
            return await analyzing.run(lambda: service.audit_findings(kind, offset, limit))

    if changes is not None:
        add_edits(api, changes, analyzing)
    app.include_router(api)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        """The gallery."""
        return FileResponse(STATIC / "index.html")

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    async def docs() -> FileResponse:
        """The documentation of the API, rendered from /openapi.json."""
        return FileResponse(STATIC / "docs.html")

    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def _json(answer: bytes) -> Response:
    """An answer that was written in the thread that computed it, so that the event loop does not have to."""
    return Response(answer, media_type="application/json")


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # Starlette's own errors have only the name of the status as detail.
    messages = {"Not Found": "no such page", "Method Not Allowed": f"{request.method} is not allowed here"}
    return error_response(error.status_code, messages.get(error.detail, error.detail), error.headers)


async def _on_invalid_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(422, "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors()))
