-- Tells the hub *owner* something, on its one channel. Returns how many heard it; nil where that
-- cannot be known.
local function tell(owner, kind, what)
  local prefix, name = string.match(holders, '^(.-){(.*)}')
  local heard = redis.pcall('PUBLISH', prefix .. '@' .. owner, kind .. ' ' .. what .. ' ' .. name)
  return type(heard) == 'number' and heard or nil
end
