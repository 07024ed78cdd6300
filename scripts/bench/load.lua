-- Sends a fixed number of requests over wrk's connections, so that none is under way at the end.
-- Arguments: how many, and for a POST: the file of item templates, items in a body, first number, groups.

local calls, limit, number, batch = 0, 0, 0, 0
local items = {}

function init(args)
  limit = tonumber(args[1])
  if args[2] then
    batch, number = tonumber(args[3]), tonumber(args[4])
    local groups, turn = tonumber(args[5]), 0
    for line in io.lines(args[2]) do
      local pieces, at = {}, 1
      while true do
        local from, to = line:find("@@", at, true)
        table.insert(pieces, line:sub(at, (from or 0) - 1))
        if not from then break end
        at = to + 1
      end
      table.insert(items, pieces)
    end
    wrk.method = "POST"
    wrk.headers["Content-Type"] = "application/json"
    request = function()
      local body = {}
      for n = 1, batch do
        number = number + 1
        body[n] = table.concat(items[number % #items + 1], tostring(number))
      end
      turn = turn + 1
      local path = groups > 1 and (wrk.path .. "-" .. turn % groups) or nil
      return wrk.format(nil, path, nil, "[" .. table.concat(body, ",") .. "]")
    end
  end
end

-- wrk asks before the first request of each connection and after each response.
function delay()
  calls = calls + 1
  if calls == 1 then io.stderr:write("begin\n") end
  if calls == limit + connections then io.stderr:write("end\n") end
  return calls > limit and 1000000 or 0
end

function setup(thread)
  thread:set("connections", tonumber(os.getenv("CONNECTIONS")))
end

function done(summary, latency)
  local errors = summary.errors
  io.stderr:write(string.format(
    '{"requests":%d,"failed":%d,"p50":%f,"p99":%f,"bytes":%d}\n',
    summary.requests,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, summary.bytes))
end
