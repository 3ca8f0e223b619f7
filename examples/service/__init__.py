"""An HTTP service over the shards of a bucket: Starlette on uvicorn, and streamrec on the same event loop.

    python -m examples.service

starts a SeaweedFS, writes shards to it, and serves them on http://127.0.0.1:8000. With a bucket of your own:

    STREAMREC_SERVICE_URL=s3://bucket/served uvicorn --factory examples.service.app:create

| request | answer |
|---|---|
| `GET /shards` | the names of all shards |
| `GET /shards/NAME.tfrecord` | the records of a shard, or of all that a `*` matches; `Accept` says how |
| `GET /shards/NAME.tfrecord?start=0&end=1000000` | those of a piece of it |
| `PUT /shards/NAME.tfrecord` | takes a TFRecord stream, or NDJSON, as a shard: whole or not at all |
| `POST /index` | brings the index of all shards up to date |
| `GET /records/17`, `/records/17,3`, `/records/100:200` | records by their numbers |
| `GET /healthz`, `/readyz`, `/metrics` | the process lives; the store answers; figures for Prometheus |

    app.py        settings, routes, what lives as long as the service
    reading.py    the requests that read      ─► encoding.py   records to bodies, in short steps
    uploads.py    the requests that write     ─► examples.py   an Example as JSON, and back
    streaming.py  a body that waits for its client, and ends when the client leaves
    failures.py   which error is which status
    metrics.py    figures, health, and the event loop's delay
    load.py       a client that tries all of it at once

Needs `pip install 'streamrec[s3,prometheus]' starlette uvicorn`.
"""
