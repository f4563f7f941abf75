-- The quick path of a release, which most can take: nobody waits, nothing is heavy, and the
-- permits are the caller's own and held. It does what the rest of the script would do.

local function give_back_all()
  if ARGV[5] ~= hub or call('EXISTS', weights, line) > 0 then return end
  local ids = {}
  for i = 7, #ARGV do
    if tonumber(ARGV[i]) > mark then return end
    ids[i - 6] = hub .. '.' .. ARGV[i]
  end
  for _, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    if not expiry or tonumber(expiry) <= now then return end
  end
  call('ZREM', holders, unpack(ids))
  call('HDEL', meta, unpack(ids))
  return { tag }
end

local reply = give_back_all()
if reply then return reply end
