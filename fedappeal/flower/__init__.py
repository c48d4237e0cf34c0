"""Every use of something that Flower does not publish, one purpose a module.

What Flower publishes is in `flwr.app`, `flwr.clientapp`, `flwr.serverapp`, their strategies and mods, and
`flwr.simulation`; the rest of this project imports only these. Each module here has tests in tests/flower, which fail
where an upgrade of Flower changes what the module relies on.

The modules import nothing of the project but fedappeal.protocol, so that every other package may import them.
"""
