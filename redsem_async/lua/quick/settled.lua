-- settled: a condition of the quick paths.

-- Whether nothing but a release or an acquire may have changed who is served next since the queue
-- was served last: the quick paths read no more than this. With so many *used*, none fits of those
-- that were passed over.
local function queue_is_settled(used)
  local looked = string.match(state.looked or '', '^(%d+)$')
  local needed, of = string.match(state.passed or '', ':(%d+):(.*)$')
  return looked and used >= (tonumber(needed) or 0) and (of or '-') == '-' and not state.back_off
    and call('ZCOUNT', hubs, '(' .. looked, now) == 0
end
