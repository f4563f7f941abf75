-- Tells the hub *owner* something, on its channel in the shard of this semaphore. Returns how many
-- heard it; nil where that cannot be known. Other nodes of the shard repeat it; one that was its
-- master has ended its subscriptions by then, as the news of its demotion came the same way.
local function publish_to(owner, kind, what)
  local shard, name = string.match(holders, '^(.-{(.*)}:)')
  local receivers = redis.pcall('SPUBLISH', shard .. '@' .. owner,
    kind .. ' ' .. what .. ' ' .. name)
  return type(receivers) == 'number' and receivers or nil
end
