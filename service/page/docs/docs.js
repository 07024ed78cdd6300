// The API description in Swagger UI, signed in as the page at / is.

import { askOtherTabs, token } from "../base/session.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

// What is authorized here holds for the tab, as on the page: Swagger UI itself would keep it on disk.
const keepToken = () => ({
  statePlugins: {
    auth: {
      wrapActions: {
        authorize: (original) => (payload) => {
          if (payload.bearer?.value) token.set(payload.bearer.value);
          return original(payload);
        },
        logout: (original) => (names) => {
          token.forget();
          return original(names);
        },
      },
    },
  },
});

const [spec] = await Promise.all([fetch("openapi.json").then((response) => response.json()), askOtherTabs()]);
spec.servers = [{ url: new URL(".", document.baseURI).href.replace(/\/$/, "") }]; // also behind a path prefix
const ui = SwaggerUIBundle({
  spec,
  dom_id: "#swagger-ui",
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
  presets: [SwaggerUIBundle.presets.apis],
  plugins: [keepToken],
  onComplete: () => token.get() && ui.preauthorizeApiKey("bearer", token.get()),
});
