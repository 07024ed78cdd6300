"""Query parameters: unknown ones are refused on every route, with the nearest known name."""

from __future__ import annotations

from service.store import SCOPES
from tests.conftest import MakeApi
from tests.support.api import Api
from tests.support.routes import API_ROUTES


async def test_every_route_refuses_a_parameter_that_it_does_not_have(make_api: MakeApi) -> None:
    api = await make_api(scopes=list(SCOPES))
    for method, path, _, _ in API_ROUTES:
        for name in ("group_id", "output_id"):
            path = path.replace(f"{{{name}}}", "x")
        response = await api.request(method, f"{path}?nothing_like_it=1")
        assert response.status == 422, (method, path)
        assert response.problems() == [(["query", "nothing_like_it"], "unknown_parameter")], (method, path)


async def test_a_misspelled_filter_gets_the_right_name_suggested(api: Api) -> None:
    for query, meant in [
        ("contry=Germany", "country"),
        ("Limit=5", "limit"),
        ("job-id=x", "job_id"),
        ("created_afer=2026", "created_after"),
        ("source_url=https://a.example/", "url"),
        ("page=2", "cursor"),
        ("sort=desc", "order"),
    ]:
        response = await api.get(f"/v1/outputs/g?{query}")
        assert response.status == 422, (query, meant)
        assert response.json["detail"][0]["msg"] == f"Unknown parameter: did you mean {meant}?", (query, meant)


async def test_of_many_unknown_parameters_the_first_100_are_reported(api: Api) -> None:
    response = await api.get("/v1/cookies?" + "&".join(f"p{n}=1" for n in range(300)))
    assert (response.status, len(response.json["detail"])) == (422, 100)


async def test_a_name_of_many_kilobytes_is_cut_in_the_response(api: Api) -> None:
    response = await api.get("/v1/cookies?" + "x" * 30_000 + "=1")
    assert response.status == 422 and len(response.body) < 500


async def test_a_caller_without_a_token_learns_nothing_about_parameters(api: Api) -> None:
    response = await api.get("/v1/cookies?nothing=1", headers={"Authorization": ""})
    assert response.status == 401


async def test_the_page_ignores_what_others_append_to_its_address(api: Api) -> None:
    assert (await api.get("/?utm_source=mail")).status == 200
