"""Servers on loopback: sockets, HTTP/1.1, the fault server that the store and the proxy share."""
