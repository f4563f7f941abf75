-- Tells the hub *owner* something, on its channel in the shard of this semaphore. Returns how many
-- heard it; nil where that cannot be known.
local function tell(owner, kind, what)
  local shard, name = string.match(holders, '^(.-{(.*)}:)')
  local heard = redis.pcall('SPUBLISH', shard .. '@' .. owner, kind .. ' ' .. what .. ' ' .. name)
  return type(heard) == 'number' and heard or nil
end
