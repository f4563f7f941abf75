-- queue_is_settled(): whether nothing but a release or an acquire may have changed who of the queue is
-- served next since it was served last. It was looked through for requests of the dead then, and no
-- hub has died since; no request is to return to it; there is no back-off; and no permits were lost
-- (`extra` was evicted, for example): with so many *used*, none fits of those that were passed over.
local function queue_is_settled(used)
  local looked = string.match(fields[14] or '', '^(%d+)$')
  local needed = tonumber(string.match(fields[13] or '', ':(%d+)$')) or 0
  return looked and used >= needed and not (returns or unreachable or fields[15] or fields[7])
    and call('ZCOUNT', hubs, '(' .. looked, now) == 0
end
