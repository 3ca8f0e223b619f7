"""Streams shards of a bucket: `python -m examples.service.minimal`."""

import os
from contextlib import aclosing

import uvicorn
from prometheus_client import Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

import streamrec

URL = os.environ.get("SERVED", "s3://my-bucket/served")
OPEN = Gauge("served_streams", "Streams that are being sent.")
SENT = Counter("served_bytes", "Bytes that were sent.")


async def stream(url):
    """The records of a shard, as parts of a TFRecord stream."""
    small = {"block_bytes": 512 << 10, "buffer_bytes": 0}
    with OPEN.track_inprogress():
        async with streamrec.open_shard(url, **small) as shard:
            async for frames in shard.frames():
                chunk = streamrec.encode_records(frames)
                yield chunk
                SENT.inc(len(chunk))


async def shards(request):
    """All records of a shard, or a 404."""
    chunks = stream(f"{URL}/{request.path_params['name']}")
    try:
        first = await anext(chunks, b"")  # before the answer begins
    except streamrec.NotFoundError as error:
        return PlainTextResponse(str(error), 404)

    async def body():
        async with aclosing(chunks):  # also when the client leaves
            yield first
            async for chunk in chunks:
                yield chunk

    return StreamingResponse(body(), media_type="application/x-tfrecord")


async def metrics(request):
    """Open streams and sent bytes, for Prometheus."""
    return PlainTextResponse(generate_latest())


app = Starlette(
    routes=[
        Route("/metrics", metrics),
        Route("/shards/{name}", shards),
    ],
)

if __name__ == "__main__":
    uvicorn.run(app, timeout_graceful_shutdown=30)
