-- queue_is_settled(): whether nothing but a release or an acquire may have changed who of the queue is
-- served next since it was served last. It was looked through for requests of the dead then, and no
-- hub has died since; no request is to return to it; and there is no back-off.
local function queue_is_settled()
  local looked = string.match(fields[14] or '', '^(%d+)$')
  return looked and not (returns or unreachable or fields[15] or fields[7])
    and call('ZCOUNT', hubs, '(' .. looked, now) == 0
end
