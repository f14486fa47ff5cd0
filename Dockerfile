# The plain installation: docker build -t rollproof . && docker run --rm -v "$PWD:/work" rollproof check my_adapter:Mine
FROM python:3.13-slim AS build
COPY . /source
RUN pip wheel --quiet --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim
RUN useradd --create-home rollproof && mkdir /work && chown rollproof /work
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --quiet --no-cache-dir /wheels/*.whl
USER rollproof
WORKDIR /work
ENTRYPOINT ["rollproof"]
CMD ["--help"]
