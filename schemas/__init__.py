"""The shapes of requests and responses, one module per resource. Imports Marshmallow only."""
