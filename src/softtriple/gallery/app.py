"""The web application: routes, errors as sentences, and the page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from torch import Tensor

from softtriple.gallery.answers import (
    About,
    ClassList,
    ClassNames,
    ClassPage,
    Found,
    Health,
    ItemPage,
    MapAnswer,
    Problem,
)
from softtriple.gallery.contents import Contents
from softtriple.gallery.guard import Guard
from softtriple.gallery.settings import Settings
from softtriple.gallery.thumbnails import Size
from softtriple.gallery.workers import Workers
from softtriple.models import Encoder
from softtriple.search import Store

STATIC = Path(__file__).parent / "static"

ItemId = Annotated[str, Query(description="The id of a stored item.", min_length=1, max_length=4096)]
ClassName = Annotated[str, Query(alias="class", description="The name of a class.", min_length=1, max_length=1024)]
OwnClass = Annotated[
    str | None, Query(alias="class", description="The class of the query, if you know it.", max_length=1024)
]
Neighbors = Annotated[int, Query(description="How many neighbours.", ge=1, le=100)]

_REFUSALS: dict[int, str] = {
    401: "A token is needed.",
    404: "There is no such item or class, or the run takes no such query.",
    408: "The request came too slowly.",
    413: "Too many bytes or pixels.",
    415: "Not a picture that can be read.",
    421: "The server is called by a name that is not its own.",
    422: "A parameter is missing or wrong.",
    429: "Busy: ask again after the seconds in Retry-After.",
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text} for status, text in _REFUSALS.items()
}
_PICTURE_BODY = {"requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string"}}}}}
_PICTURE_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {"image/webp": {}}}}


def create_app(encoder: Encoder, store: Store, centers: Tensor | None, settings: Settings | None = None) -> FastAPI:
    """The application for one run: its encoder, the store of its vectors and, where its loss has them, its centres.

    ``centers`` is (classes, k, dim), in the order of ``encoder.class_names``. Who calls closes the store.
    """
    settings = Settings() if settings is None else settings
    contents = Contents(encoder, store, centers, settings)
    seconds = settings.work_seconds
    # One thread each for the encoder, which uses all cores by itself, and for the overview, which is made only once.
    encoding = Workers("encoding", threads=1, queue=settings.max_encoding, seconds=seconds)
    analyzing = Workers("analyzing", threads=1, queue=settings.max_requests, seconds=seconds)
    reading = Workers("reading", threads=4, queue=settings.max_requests, seconds=seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for workers in (encoding, analyzing, reading):
            workers.close()

    app = FastAPI(
        title="softtriple gallery",
        description="Search a store by picture, text or item, and see how well its classes are told apart.",
        version=version("softtriple"),
        docs_url=None,  # those pages come from another server; /docs is our own
        redoc_url=None,
        lifespan=lifespan,
        responses=_PROBLEMS,
    )
    app.add_middleware(Guard, settings=settings)
    app.add_exception_handler(HTTPException, _refusal)
    app.add_exception_handler(RequestValidationError, _wrong_parameters)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["server"])
    async def health() -> Health:
        """Whether the server and its store answer; needs no token."""
        return Health(status="ok", items=await reading.run(contents.count))

    # Only said here, for /openapi.json: it is the guard that asks for the token, before anything else.
    bearer = HTTPBearer(auto_error=False, description="The token that the server was started with.")
    api = APIRouter(prefix="/api", dependencies=[] if settings.token is None else [Depends(bearer)])

    @api.get("/about", tags=["server"])
    async def about() -> About:
        """What is shown here: kind of items, counts, limits."""
        return await reading.run(contents.about)

    @api.post("/search/image", tags=["search"], openapi_extra=_PICTURE_BODY)
    async def search_image(request: Request, k: Neighbors = 24, own_class: OwnClass = None) -> Found:
        """The neighbours of a picture, which is the body of the request, as it is in its file."""
        data = await request.body()
        vector = await encoding.run(lambda: contents.embed_upload(data))
        return await reading.run(lambda: contents.search_vector(vector, k, own_class))

    @api.get("/search/text", tags=["search"])
    async def search_text(
        text: Annotated[str, Query(min_length=1, max_length=4000)], k: Neighbors = 24, own_class: OwnClass = None
    ) -> Found:
        """The neighbours of a text, for runs on texts."""
        vector = await encoding.run(lambda: contents.embed_text(text))
        return await reading.run(lambda: contents.search_vector(vector, k, own_class))

    @api.get("/search/item", tags=["search"])
    async def search_item(id: ItemId, k: Neighbors = 24) -> Found:
        """The neighbours of a stored item."""
        return await reading.run(lambda: contents.search_item(id, k))

    @api.get("/items", tags=["items"])
    async def items(
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=200)] = 48,
        of_class: Annotated[
            str | None, Query(alias="class", description="Only items of this class.", max_length=1024)
        ] = None,
        center: Annotated[
            int | None, Query(description="Only those nearest to this centre of the class, counted from 0.", ge=0)
        ] = None,
    ) -> ItemPage:
        """A page of items: of all, of one class, or of one of its centres."""
        return await analyzing.run(lambda: contents.items(offset, limit, of_class, center))

    @api.get("/thumbnail", tags=["items"], response_class=Response, responses=_PICTURE_ANSWER)
    async def thumbnail(id: ItemId, size: Size = "small") -> Response:
        """A small picture of a stored item."""
        picture = await reading.run(lambda: contents.thumbnail(id, size))
        return Response(picture, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})

    @api.get("/classes", tags=["classes"])
    async def classes() -> ClassList:
        """Recall@1 of every class and what it is confused with, worst first."""
        return await analyzing.run(contents.classes)

    @api.get("/class-names", tags=["classes"])
    async def class_names() -> ClassNames:
        """The names of all classes; quicker than what is known about them."""
        return ClassNames(class_names=await reading.run(contents.class_names))

    @api.get("/class", tags=["classes"])
    async def class_page(name: ClassName) -> ClassPage:
        """One class: its recall, its centres, and the items that fall to each."""
        return await analyzing.run(lambda: contents.class_page(name))

    @api.get("/map", tags=["classes"])
    async def embedding_map() -> MapAnswer:
        """Items in the plane of the two principal directions."""
        return await analyzing.run(contents.map)

    app.include_router(api)

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        """The gallery."""
        return FileResponse(STATIC / "index.html")

    @app.head("/docs", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        """The documentation of the JSON interface, drawn from /openapi.json."""
        return FileResponse(STATIC / "docs.html")

    app.mount("/static", StaticFiles(directory=STATIC))
    return app


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # Where it is Starlette that refuses, it does so in two words.
    said = {"Not Found": "there is nothing at this address", "Method Not Allowed": f"no {request.method} here"}
    return JSONResponse({"error": said.get(error.detail, error.detail)}, error.status_code, headers=error.headers)


async def _wrong_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = [f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors()]
    return JSONResponse({"error": "; ".join(wrong)}, 422)
