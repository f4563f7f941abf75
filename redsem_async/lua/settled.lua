-- queue_is_settled(): whether nothing but a release or an acquire may have changed who of the queue is
-- served next since it was served last. It was looked through for requests of the dead then, and no
-- hub has died since; no request is to return to it; and there is no back-off, nor was there a grace
-- period, whose end would change it.
local function queue_is_settled()
  local looked = string.match(fields[15] or '', '^(%d+)$')
  return looked and not (returns or unreachable or grace > 0 or fields[16] or fields[17])
    and call('ZCOUNT', hubs, '(' .. looked, now) == 0
end
