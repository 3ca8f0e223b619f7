"""Servers on loopback: sockets, HTTP/1.1, the fault server."""
