"""Clients that others generate from the served OpenAPI document: they compile, and they read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Caller
from tests.e2e.node import node_modules, run
from tests.support.api import make_output

TYPESCRIPT = r"""
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Output = components["schemas"]["Output"];

const [address, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: address, headers: { Authorization: `Bearer ${token}` } });

async function read(group_id: string, cursor = 0): Promise<Output[]> {
  const { data, error } = await client.GET("/v1/outputs/{group_id}", {
    params: { path: { group_id }, query: { limit: 2, country: "Germany", order: "asc", cursor } },
  });
  if (error) throw new Error(error.detail.map((problem) => `${problem.loc.join(".")}: ${problem.msg}`).join());
  const next: number | null = data.metadata.next_cursor;
  return next === null ? data.items : [...data.items, ...(await read(group_id, next))];
}

const items = await read("shop");
const { data: one } = await client.GET("/v1/outputs/{group_id}/{output_id}", {
  params: { path: { group_id: "shop", output_id: items[0].output_id } },
});
const { data: patched } = await client.PATCH("/v1/outputs/{group_id}/{output_id}", {
  params: { path: { group_id: "shop", output_id: items[0].output_id }, header: { "If-Match": `"${items[0].id}"` } },
  body: { is_approved: true },
});
const { data: jobs } = await client.GET("/v1/groups/{group_id}/jobs", { params: { path: { group_id: "shop" } } });
const status: string | undefined = jobs?.[0].review?.status;
const wrong = await client.GET("/v1/outputs/{group_id}", {
  params: {
    path: { group_id: "shop" },
    query: {
      // @ts-expect-error: there is no such parameter
      contry: "Germany",
    },
  },
});
// @ts-expect-error: what may be null is not a string
const url: string = (await client.GET("/v1/outputs/{group_id}", { params: { path: { group_id: "shop" } } })).data!
  .metadata.next_url;

// A write: everything optional left out, and a second body in the other content type.
type OutputInput = components["schemas"]["OutputInput"];
const lamp: OutputInput = { source_url: "https://shop.example/9", root_job_id: "job-2", data: { title: "Lamp 9" } };
const { data: written } = await client.POST("/v1/outputs/{group_id}", {
  params: { path: { group_id: "written" } },
  body: [lamp, { ...lamp, key_hash: "key-9", files: [{ file_url: "https://shop.example/9.pdf" }] }],
});
const lines = await client.POST("/v1/outputs/{group_id}", {
  params: { path: { group_id: "written" } },
  body: JSON.stringify({ ...lamp, key_hash: "key-10" }),
  bodySerializer: (body) => body as string,
  headers: { "Content-Type": "application/x-ndjson" },
});
const { data: cookies } = await client.POST("/v1/cookies", {
  body: [{ domain: ".shop.example", name: "session", value: "4f1c" }],
});
// @ts-expect-error: data is required
const partial: OutputInput = { source_url: "https://shop.example/9", root_job_id: "job-2" };

// An error.
const { error: refused } = await client.POST("/v1/outputs/{group_id}", {
  params: { path: { group_id: "written" } },
  body: [partial],
});

// A followed export: what is there, then what comes.
const ending = new AbortController();
const { data: stream } = await client.GET("/v1/outputs/{group_id}/export", {
  params: { path: { group_id: "written" }, query: { format: "ndjson", follow: true } },
  parseAs: "stream",
  signal: ending.signal,
});
const followed: unknown[] = [];
const decoder = new TextDecoder();
const reader = stream!.getReader();
let rest = "";
while (followed.length < 4) {
  rest += decoder.decode((await reader.read()).value, { stream: true });
  const whole = rest.split(/\r?\n/);
  rest = whole.pop() ?? "";
  for (const line of whole) if (line) followed.push((JSON.parse(line) as Output).data.title);
  if (followed.length === 3)
    await client.POST("/v1/outputs/{group_id}", {
      params: { path: { group_id: "written" } },
      body: [{ ...lamp, data: { title: "New" } }],
    });
}
ending.abort();

console.log(
  JSON.stringify({
    written: [written?.created, lines.data?.created, cookies?.created],
    refused: refused?.detail.map((problem) => [problem.loc.join("."), problem.type]),
    followed,
    keys: items.map((item) => item.key_hash),
    one: one?.id === items[0].id,
    patched: patched?.result,
    status: status ?? null,
    wrong: wrong.error?.detail[0].type,
    url,
  }),
);
"""

TSCONFIG: dict[str, Any] = {
    "compilerOptions": {
        "strict": True,
        "target": "es2022",
        "module": "nodenext",
        "lib": ["es2022", "dom", "dom.iterable"],
        "types": [],
        "outDir": "out",
    },
    "files": ["globals.d.ts", "read.ts"],
}

PYTHON = """
import json, sys
from client import AuthenticatedClient
from client.api.output import output_get
from client.api.outputs import outputs_get
from client.models import Error, OutputsPage

address, token = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token)
page = outputs_get.sync("shop", client=client, limit=2, country="Germany")
assert isinstance(page, OutputsPage), page
rest = outputs_get.sync("shop", client=client, country="Germany", cursor=page.metadata.next_cursor)
assert rest.metadata.next_cursor is None and rest.metadata.next_url is None
items = [*page.items, *rest.items]
one = output_get.sync("shop", items[0].output_id, client=client)
missing = output_get.sync("shop", "nothing", client=client)
assert isinstance(missing, Error)
print(json.dumps({
    "keys": [item.key_hash for item in items],
    "title": items[0].data["title"],
    "year": items[0].create_date.year,
    "one": one.to_dict() == items[0].to_dict(),
    "missing": missing.detail[0].type_,
}))
"""


@pytest.fixture
def shop(caller: Caller) -> Caller:
    """A caller whose group `shop` has three outputs of Germany and one of France."""
    outputs = [make_output(n) for n in range(3)]
    caller.post("outputs/shop", [*outputs, make_output(3, tags={"country": "France"})])
    caller.post("reviews/shop", [{"job_id": "job-1", "status": "approved"}])
    return caller


def test_a_typescript_client_type_checks_reads_writes_and_follows(shop: Caller, document: Path, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(node_modules())
    files = {
        "package.json": json.dumps({"type": "module"}),
        "tsconfig.json": json.dumps(TSCONFIG),
        "globals.d.ts": "declare const process: { argv: string[] };",
        "read.ts": TYPESCRIPT,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    binaries = node_modules() / ".bin"
    run(binaries / "openapi-typescript", document, "--output", tmp_path / "schema.d.ts", cwd=tmp_path)
    run(binaries / "tsc", "--project", tmp_path, cwd=tmp_path)
    found: dict[str, Any] = json.loads(run("node", "out/read.js", shop.address, shop.token, cwd=tmp_path))
    assert found == {
        "written": [2, 1, 1],
        "refused": [["body.0.data", "missing"]],
        "followed": ["Lamp 9", "Lamp 9", "Lamp 9", "New"],
        "keys": ["key-0", "key-1", "key-2"],
        "one": True,
        "patched": "updated",
        "status": "approved",
        "wrong": "unknown_parameter",
        "url": None,
    }


def test_openapi_generator_makes_a_typescript_client_that_compiles(document: Path, tmp_path: Path) -> None:
    generator = Path(sys.executable).with_name("openapi-generator-cli")
    run(generator, "generate", "-i", document, "-g", "typescript-fetch", "-o", tmp_path / "client", cwd=tmp_path)
    options = {**TSCONFIG["compilerOptions"], "module": "esnext", "moduleResolution": "bundler"}
    config = {"compilerOptions": options, "files": ["client/index.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    run(node_modules() / ".bin/tsc", "--project", tmp_path, cwd=tmp_path)


def test_a_python_client_is_generated_without_a_warning_and_reads(shop: Caller, document: Path, tmp_path: Path) -> None:
    # Without its formatters, which need not be here. It does not know NDJSON by itself.
    overrides = {"application/x-ndjson": "application/octet-stream"}
    config = {"post_hooks": [], "package_name_override": "client", "content_type_overrides": overrides}
    (tmp_path / "config.json").write_text(json.dumps(config))
    generator = Path(sys.executable).with_name("openapi-python-client")
    options = ("--meta", "none", "--output-path", tmp_path / "client", "--config", tmp_path / "config.json")
    printed = run(generator, "generate", "--path", document, *options, "--fail-on-warning", cwd=tmp_path)
    assert "warning" not in printed.lower()
    found = json.loads(run(sys.executable, "-c", PYTHON, shop.address, shop.token, cwd=tmp_path))
    page = shop.get("outputs/shop")
    assert found == {
        "keys": ["key-0", "key-1", "key-2"],
        "title": "Lamp 0",
        "year": int(page["items"][0]["create_date"][:4]),
        "one": True,
        "missing": "not_found",
    }
