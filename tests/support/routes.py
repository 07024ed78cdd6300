"""The routes that the OpenAPI document describes: all but the pages and their files."""

from service.routes import ROUTES

API_ROUTES = [route for route in ROUTES if hasattr(route.handler, "__apispec__")]
