"""Stores for the tests, the benchmarks and the demo: real servers, and stores that fail on purpose.

- `real` starts SeaweedFS, fake-gcs-server, nginx and others on this machine.
- `objectstore` is a simulated object store (S3 and Google Cloud Storage) over a directory. It is a
  program, too (`python -m tests.servers.objectstore`), and needs the standard library only.
  `tests.storage.faultproxy` puts the same faults in front of a real server.
- `resuming` asserts that a pipeline resumes exactly after each of its elements.
"""
