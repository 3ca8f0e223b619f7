"""An HTTP service for the shards of a bucket: Starlette on uvicorn, with streamrec on the same
event loop.

    python -m examples.service

starts a SeaweedFS server, writes shards to it, and serves them on http://127.0.0.1:8000. With your
own bucket:

    STREAMREC_SERVICE_URL=s3://bucket/served uvicorn --factory examples.service.app:create

| request | answer |
|---|---|
| `GET /shards` | the names of all shards |
| `GET /shards/NAME.tfrecord` | the records of a shard, or of all that a `*` matches; `Accept` selects the format |
| `GET /shards/NAME.tfrecord?start=0&end=1000000` | the records of a byte range |
| `PUT /shards/NAME.tfrecord` | stores a TFRecord stream, or NDJSON, as a shard: completely or not at all |
| `POST /events` | appends records; the answer comes when they are durable |
| `POST /index` | updates the index of all shards |
| `GET /records/17`, `/records/17,3`, `/records/100:200` | records by number |
| `GET /healthz`, `/readyz`, `/metrics` | the process is alive; the store answers; figures for Prometheus |

    app.py        settings, routes, objects that live as long as the service
    reading.py    the requests that read      ─► encoding.py   records to bodies, in short steps
    uploads.py    the requests that write     ─► examples.py   an Example as JSON, and back
    events.py     the request that appends
    streaming.py  a body that waits for its client, and ends when the client disconnects
    failures.py   the status of each error
    metrics.py    figures, health, and the delay of the event loop
    load.py       a load test for all requests

Needs `pip install '.[s3,prometheus]' starlette uvicorn` in a checkout of streamrec.
"""  # noqa: E501
