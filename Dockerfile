# The server: softtriple serve, for a run and a store that are mounted.
#
#   docker build --tag softtriple-serve .
#   docker run --publish 8000:8000 --env SOFTTRIPLE_TOKEN --volume "$PWD/runs/photos:/data/run:ro" \
#       --volume "$PWD/photos.store:/data/store" softtriple-serve
#
# pip takes torch's default build, which on Linux brings CUDA. For the CPU build, name an index that has it:
#   --build-arg PIP_EXTRA_INDEX_URL=...
# CUDA: --build-arg BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04 (its Python 3 is 3.12).
ARG BASE=python:3.11-slim-bookworm

FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# The CUDA images have no Python; the Python images have one already.
# hadolint ignore=DL3008
RUN if ! command -v python3 >/dev/null; then \
        apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && \
        rm -rf /var/lib/apt/lists/*; \
    fi && \
    python3 -m venv /opt/softtriple && \
    useradd --create-home --uid 10001 softtriple
ENV PATH=/opt/softtriple/bin:$PATH
ARG PIP_EXTRA_INDEX_URL=
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /tmp/wheels
RUN wheel="$(echo /tmp/wheels/softtriple-*.whl)" && \
    pip install --no-cache-dir --constraint /tmp/constraints.txt "${wheel}[milvus,parquet,serve,store]" && \
    rm -rf /tmp/wheels /tmp/constraints.txt
USER 10001
WORKDIR /home/softtriple
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# Listening on every address of the container needs a token (SOFTTRIPLE_TOKEN), or --allow-public behind a proxy.
ENTRYPOINT ["softtriple", "serve", "--host", "0.0.0.0"]
CMD ["/data/run", "--store", "/data/store"]
