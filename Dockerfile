# The server as an image for linux/amd64, with Python and packages as they are tested: `docker compose build`, or
#
#   docker build --tag headwater .                               for CPUs
#   docker build --tag headwater --build-arg FLAVOUR=gpu .       for NVIDIA GPUs
#
# It runs as uid 10001 and writes below /var/lib/headwater and /tmp only, so its root can be mounted read-only.

FROM python:3.11.15-slim-bookworm@sha256:d29f48a31a8b408ed19272ca1e7b10ebae13b240a27e862d3d4217c528e2e0c3 AS base


FROM base AS build

# The C kernels are compiled here, once, since what is run has no compiler. Debian keeps one version of a package in a
# release, which the digest above chooses: a pinned one would vanish with its next fix.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# What changes seldom comes first: packages, each by its digest (deploy/lock.py writes the lists), none built from source.
ARG FLAVOUR=cpu
COPY deploy/requirements/ /build/requirements/
RUN python -m venv /opt/headwater \
    && /opt/headwater/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: \
        --requirement /build/requirements/base.txt \
    && /opt/headwater/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: \
        --requirement "/build/requirements/${FLAVOUR}.txt" \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: \
        --requirement /build/requirements/build.txt

WORKDIR /build/source
COPY pyproject.toml README.md LICENSE ./
COPY gateway/ gateway/
COPY engine/ engine/
COPY grammar/ grammar/
COPY cache/ cache/
COPY adapters/ adapters/
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /build/wheels . \
    && /opt/headwater/bin/pip install --no-cache-dir --no-deps --no-index /build/wheels/*.whl \
    && /opt/headwater/bin/python -m engine.native.prebuilt \
    && mkdir -p /data/models /data/cache /data/state \
    && chmod 0700 /data/models /data/cache /data/state


FROM base

RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/headwater --shell /usr/sbin/nologin headwater
COPY --from=build /opt/headwater/ /opt/headwater/
# A new volume takes its owner from the place it is mounted on.
COPY --from=build --chown=10001:10001 /data/ /var/lib/headwater/
COPY deploy/healthcheck.py /opt/headwater/healthcheck.py

ENV PATH=/opt/headwater/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    HF_HOME=/var/lib/headwater/models/hub \
    HEADWATER_STORE=/var/lib/headwater/models \
    HEADWATER_KEY_STORE=/var/lib/headwater/state/keys.json

USER 10001:10001
WORKDIR /var/lib/headwater
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=600s \
    CMD ["python", "-I", "/opt/headwater/healthcheck.py"]
ENTRYPOINT ["headwater"]
CMD ["serve"]
