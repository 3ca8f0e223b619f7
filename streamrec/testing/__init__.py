"""What streamrec's own tests stand on, shipped for yours: stores that misbehave on demand, and checks.

`streamrec.testing.objectstore` is a simulated object store (S3 and Google Cloud Storage) over a directory,
and `streamrec.testing.proxy` puts the same faults in front of a real server. Both need the standard library
only. They are not imported here: each is a program too (`python -m streamrec.testing.objectstore`).
`streamrec.testing.resuming` asserts that a pipeline resumes exactly after each of its elements.
"""
