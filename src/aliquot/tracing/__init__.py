"""The way of a pod as one trace: its context, and spans sent by OTLP/HTTP. Off without an endpoint."""
