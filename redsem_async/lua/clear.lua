-- clear: delete the semaphore. Holders lose their permits, and waiters start again.
--
-- KEYS     as in the head
-- ARGV     none of its own
-- RETURNS  {tag}

for _, owner in ipairs(call('ZRANGE', hubs, 0, -1)) do
  if owner ~= hub then tell(owner, 'cleared', '-') end
end
call('UNLINK', unpack(KEYS))
if last >= now_us then
  -- A burst of tokens has run ahead of the clock: none of them may be drawn again.
  call('HSET', meta, 'counter', last)
  call('PEXPIRE', meta, math.ceil(math.max(0, last / 1000 - now) + SLACK))
end
return { tag }
